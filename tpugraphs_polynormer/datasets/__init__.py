"""Reading, converting and feeding the data sets."""
