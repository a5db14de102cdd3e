"""Workers that are forked from a process which has done their imports."""
