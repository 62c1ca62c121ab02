-- Return the server's version number and encoding.
SELECT current_setting('server_version_num')::integer AS version, current_setting('server_encoding') AS encoding
