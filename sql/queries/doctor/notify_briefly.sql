-- Notify this session on the channel of listen_briefly.sql.
NOTIFY jobherd_doctor
