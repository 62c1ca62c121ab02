-- Listen for jobs. Run by the supervisor on its only listening connection.
LISTEN jobherd_jobs
