"""One module an exercise: its words, cases, specification, hints and picture."""
