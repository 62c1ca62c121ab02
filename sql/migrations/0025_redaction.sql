-- What is never shown of a kind's jobs: the paths that @handler(redact=...) declares. The documents stay as they are; whoever shows them,
-- the page, leaves out what these paths find.
ALTER TABLE jobherd.kinds ADD redact jsonb NOT NULL DEFAULT '[]',
    ADD CONSTRAINT kinds_redact_is_a_list CHECK (jsonb_typeof(redact) = 'array');
