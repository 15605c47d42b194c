"""The pages. ``python -m demos.app`` opens all of them, ``python -m demos.restore`` one."""
