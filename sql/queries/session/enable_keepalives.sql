-- Make the server notice that the host of this session is gone, whether or not the server is still sending to
-- it. Otherwise its sessions stay for the two hours that the system allows an idle one, with the sleep keys of
-- its supervisor, and the hosts that replace it find no free connection. The server does not give up sooner than
-- the client does. Also make it notice, while a statement waits, that the client has closed the session.
-- Otherwise a client that gives up a statement waiting for a lock or a commit reconnects and waits there too,
-- until no connection is left. A server that is not on Linux may not be able to check that.
-- Run by the supervisor and its child processes when they connect. The first four settings have no effect on a
-- Unix socket.
SELECT set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '3', false),
       set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '20000', false),
       CASE WHEN version() ~ 'linux' THEN set_config('client_connection_check_interval', '1s', false) END
