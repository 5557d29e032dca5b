"""Convolutional networks: plain and residual classifiers, and U-Nets in two and three dimensions."""

from __future__ import annotations

from tpugraphs_polynormer.hlo.module import Instruction, Module
from tpugraphs_polynormer.simulator.draw import Draw
from tpugraphs_polynormer.simulator.families.loops import flagged_first
from tpugraphs_polynormer.simulator.layers import Layers

_CLASSES = (10, 100, 1000)


def plain_cnn(draw: Draw) -> Module:
    """Convolutions with bias and overlapping max pooling, then dense layers with dropout, as AlexNet and VGG."""
    batch, blocks, width = 2 * draw.pick(draw.size.batch), draw.blocks(), draw.width()
    side = max(64, draw.pick(draw.size.image))
    net = draw.network(f"alexnet_i{side}", batch=batch, blocks=blocks, width=width)
    value = net.image((batch, side, side, 3))
    value = net.relu(net.bias(net.conv(value, width, draw.pick((3, 7, 11)), draw.pick((2, 4)), same=False)))
    value = net.max_pool(value, 3, 2)
    for block in range(blocks):
        features = min(512, width << (1 + block // 2))
        value = net.relu(net.bias(net.conv(value, features, 5 if block == 0 else 3)))
        if block % 2 == 0 and value.shape.dimensions[1] >= 5:
            value = net.max_pool(value, 3, 2)
    _, rows, columns, features = value.shape.dimensions
    value = net.reshape(value, (batch, rows * columns * features))
    hidden = draw.pick((256, 512, 1024, 4096))
    for _ in range(draw.between(1, 2)):
        value = net.dropout(net.relu(net.dense(value, hidden)), 0.5)
    return net.classify(net.dense(value, draw.pick(_CLASSES)))


def residual_cnn(draw: Draw) -> Module:
    """Convolutions with batch normalization and skip connections, in stages that halve the image."""
    batch, blocks, width = 2 * draw.pick(draw.size.batch), draw.blocks(), draw.width()
    side = draw.pick(draw.size.image)
    net = draw.network(f"resnet_i{side}", batch=batch, blocks=blocks, width=width)
    value = net.image((batch, side, side, 3))
    size = draw.pick((3, 5, 7))
    if draw.chance(0.5):  # padding as an instruction of its own
        value = net.hlo.pad(value, [(0, 0), (size // 2, size // 2), (size // 2, size // 2), (0, 0)])
        value = net.relu(net.batch_norm(net.conv(value, width, size, 2, same=False)))
    else:
        value = net.relu(_conv_norm(net, value, width, size, 2))
    stages = min(3, blocks)
    for block in range(blocks):
        stage = block * stages // blocks
        starts_stage = stage > 0 and (block - 1) * stages // blocks < stage
        value = _residual_block(net, value, width << stage, 2 if starts_stage else 1)
    return net.classify(net.dense(net.mean_pool(value), draw.pick(_CLASSES)))


def _conv_norm(net: Layers, value: Instruction, features: int, size: int, stride: int = 1) -> Instruction:
    return net.batch_norm(net.conv(value, features, size, stride))


def _residual_block(net: Layers, value: Instruction, features: int, stride: int) -> Instruction:
    inner = net.relu(_conv_norm(net, value, features, 3, stride))
    inner = _conv_norm(net, inner, features, 3)
    if stride > 1 or value.shape.dimensions[3] != features:
        value = _conv_norm(net, value, features, 1, stride)
    return net.relu(net.add(inner, value))


def unet(draw: Draw) -> Module:
    """A U-Net over images [batch, rows, columns, features]."""
    batch, side = 2 * draw.pick(draw.size.batch), draw.pick(draw.size.image)
    return _unet(draw, "unet", batch, [side, side], draw.pick((1, 3, 4)), normalized=draw.chance(0.3))


def unet_3d(draw: Draw) -> Module:
    """A U-Net over volumes [batch, planes, rows, columns, features], with batch normalization, for few samples."""
    batch, side = draw.pick((1, 2, 2, 4, 8)), draw.pick(draw.size.volume)
    return _unet(draw, "unet3d", batch, [side] * 3, draw.pick((1, 4)), normalized=draw.chance(0.8))


def _unet(draw: Draw, name: str, batch: int, sides: list[int], depth_in: int, *, normalized: bool) -> Module:
    """An encoder that halves the image, a decoder that doubles it, joined by concatenated skips."""
    width = draw.width()
    depth = min(3, max(1, draw.blocks() // 2))
    repeats = max(1, draw.blocks() // (depth + 1))
    net = draw.network(f"{name}_i{sides[0]}_r{repeats}", batch=batch, blocks=depth, width=width)

    def convs(value: Instruction, features: int) -> Instruction:
        for _ in range(repeats + 1):
            value = net.bias(net.conv(value, features, 3))
            value = net.relu(net.batch_norm(value) if normalized else value)
        return value

    value = net.input((batch, *sides, depth_in))
    if net.form.masked:
        value = flagged_first(net, value)
    value, skips = net.hlo.convert(value, net.compute_type), []
    for level in range(depth):
        value = convs(value, width << level)
        skips.append(value)
        value = net.max_pool(value)
    value = convs(value, width << depth)
    for level in reversed(range(depth)):
        value = net.concatenate([skips[level], net.bias(net.upsample(value, width << level))])
        value = convs(value, width << level)
    return net.classify(net.bias(net.conv(value, draw.pick((2, 3, 4, 20)), 1)))
