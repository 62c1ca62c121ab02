-- Have the server notice that the host of this session is gone, whether or not it is still sending to it: else its sessions stay for the two
-- hours that the system gives an idle one, with the sleep keys of its parent, and the hosts that replace it find no connection left. No sooner
-- than the client gives the server up. Run by the parent and its children when they connect; on a Unix socket it means nothing.
SELECT set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '3', false),
       set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '20000', false)
