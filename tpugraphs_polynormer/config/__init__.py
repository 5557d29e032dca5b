"""The experiment's config: its fields, their defaults and limits, and its reader."""
