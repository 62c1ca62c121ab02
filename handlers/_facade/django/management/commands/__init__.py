"""Django's management commands of Jobherd."""
