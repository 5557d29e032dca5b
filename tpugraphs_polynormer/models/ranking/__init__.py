"""The model that ranks a program's candidates."""
