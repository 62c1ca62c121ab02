-- From now on the ends of jobs that have a webhook are told of. Run by the keeper of a supervisor that has a secret; false: they are already.
SELECT jobherd.enable_webhooks() AS enabled
