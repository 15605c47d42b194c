"""One file an exercise: the function to write. It says what, and leaves out how."""
