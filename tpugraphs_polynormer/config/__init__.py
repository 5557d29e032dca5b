"""The experiment's config: its fields, and how it is read."""
