"""Families of random programs: vision, language, recurrent and recommendation networks."""
