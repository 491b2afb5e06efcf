"""Model families: where the prunable axes and weights of each are. One file each."""
