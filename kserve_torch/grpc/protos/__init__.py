"""Protocol files and the modules that `protoc` makes of them (see README.md)."""
