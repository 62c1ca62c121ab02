-- Hear a channel of our own, to see whether notifications arrive over this connection.
LISTEN jobherd_doctor
