"""The settings by subject. Each is a field with its reader, explanation, default and range; nothing here acts."""
