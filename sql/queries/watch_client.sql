-- Have the server notice that the host of this session is gone, whether or not it is still sending to it: else its sessions stay for the two
-- hours that the system gives an idle one, with the sleep keys of its parent, and the hosts that replace it find no connection left. No sooner
-- than the client gives the server up. And that the client has closed it, while a statement waits: who has given up one that waits for a lock, or behind
-- a commit, comes back in a new one, and waits there too, until no connection is left. A server that is not Linux may not be able to look.
-- Run by the parent and its children when they connect; the first four mean nothing on a Unix socket.
SELECT set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '3', false),
       set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '20000', false),
       CASE WHEN version() ~ 'linux' THEN set_config('client_connection_check_interval', '1s', false) END
