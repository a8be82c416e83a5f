"""What the metadata log keeps of a broker's listeners, and who is told of which."""

from log_broker.core.cluster.broker_registry import BrokerRegistry, Registration
from log_broker.core.cluster.features import LISTENERS_FROM, METADATA_VERSION, SUPPORTED, told_of
from log_broker.core.cluster.image import ClusterImage
from log_broker.core.cluster.records import FeatureLevelSet, decode, encode
from log_broker.core.cluster.snapshot import decode_image, encode_image

LISTENERS = (("INSIDE", "10.0.0.1", 9094, 0), ("OUTSIDE", "broker.example", 9092, 3))


def registered(level, listeners):
    image = ClusterImage()
    image.replay(FeatureLevelSet(feature=METADATA_VERSION, level=level))
    wanted = Registration(1, "10.0.0.1", 9094, "ab", features=told_of(SUPPORTED), listeners=listeners)
    (record,) = BrokerRegistry(image, 0).register(image, wanted, 0)
    image.replay(decode(encode(record)))
    return image, record


def test_clients_are_told_of_the_listener_that_they_came_by():
    image, _ = registered(LISTENERS_FROM, LISTENERS)
    for each in (image, decode_image(encode_image(image), None)):
        broker = each.brokers[1]
        assert broker.endpoint("OUTSIDE") == ("broker.example", 9092)
        assert broker.endpoint("INSIDE") == broker.endpoint("") == ("10.0.0.1", 9094)
        assert broker.endpoint("OTHER") is None


def test_what_an_older_node_could_not_read_is_not_written():
    for level, listeners in ((LISTENERS_FROM - 1, LISTENERS), (LISTENERS_FROM, LISTENERS[:1])):
        image, record = registered(level, listeners)
        assert b"listeners" not in encode(record)
        assert b"listeners" not in encode_image(image)
        assert image.brokers[1].endpoint("OUTSIDE") == ("10.0.0.1", 9094)
