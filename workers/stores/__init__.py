"""Jobs in tables that the application owns, run by the same workers."""
