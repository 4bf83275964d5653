"""Faust's consumer for one topic, as far as it needs no broker."""

from faust.transport.drivers.aiokafka import Consumer

from stream.batch_consumer import consumer_of_batches


def test_it_logs_as_fausts_own() -> None:
    """Else its lines would stand under `abc`, the module of Python's that makes the class."""
    assert consumer_of_batches("interactions").logger is Consumer.logger
