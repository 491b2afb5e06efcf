"""The adaptive loop over the stages: `draftsmith forge`."""
