"""One file for each attack as the audit runs it."""
