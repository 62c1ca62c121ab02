-- Store a request for an organization's repositories. Run by the command line, with the job in one transaction.
INSERT INTO jobherd.forge_github_imports (org) VALUES (%(org)s) RETURNING id
