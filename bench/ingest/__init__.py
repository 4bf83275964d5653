"""Events a second from Kafka into durable per-user histories: ours, Faust tables, Quix Streams, and a bare consumer."""
