-- Enable reports about the ends of jobs that have a webhook. Run by the maintenance process of a supervisor that
-- has a secret; false: they are already enabled.
SELECT jobherd.enable_webhooks() AS enabled
