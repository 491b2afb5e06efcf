"""Records to charts (Altair), one function a picture; and the one way to write a chart down."""
