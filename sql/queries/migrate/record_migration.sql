-- Store that a migration was applied.
INSERT INTO jobherd.migrations (area, version, name) VALUES (%(area)s, %(version)s, %(name)s)
