"""One file an exercise: an answer that passes. Look here last."""
