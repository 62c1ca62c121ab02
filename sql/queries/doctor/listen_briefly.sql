-- Listen on a channel of this session's own, to check whether notifications arrive over this connection.
LISTEN jobherd_doctor
