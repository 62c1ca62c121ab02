"""The protocols as models in Promela, and what checks them all: `make model`."""
