"""Model archives: found or fetched, unpacked, and what they say about themselves."""
