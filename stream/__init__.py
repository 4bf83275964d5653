"""The broker side: topics, ingest, dead letters and compression jobs; knows Kafka, never the network."""
