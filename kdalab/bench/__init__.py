"""KDALab side by side with others, measured on the reader's own machine."""
