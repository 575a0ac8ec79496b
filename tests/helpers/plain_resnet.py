"""A ResNet as torchvision and timm build it (7x7 stem, max-pool, classifier `fc`, their names), in plain PyTorch."""

from torch import nn


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inside, planes, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU()
        self.downsample = downsample(inside, planes, stride)

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inside, planes, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.relu = nn.ReLU()
        self.downsample = downsample(inside, 4 * planes, stride)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(out)))))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


def downsample(inside, outside, stride):
    if stride == 1 and inside == outside:
        return None
    return nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))


class ResNet(nn.Module):
    def __init__(self, block, layers, num_classes=1000, in_chans=3):
        super().__init__()
        self.conv1 = nn.Conv2d(in_chans, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inside = 64
        for stage, depth in enumerate(layers):
            blocks = []
            for number in range(depth):
                blocks.append(block(inside, 64 * 2**stage, 2 if stage and not number else 1))
                inside = 64 * 2**stage * block.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inside, num_classes) if num_classes else nn.Identity()

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for number in range(1, 5):
            x = self.get_submodule(f"layer{number}")(x)
        return self.fc(x.mean(dim=(2, 3)))


LAYERS = {"resnet18": (BasicBlock, [2, 2, 2, 2]), "resnet50": (Bottleneck, [3, 4, 6, 3])}


def create_model(name, **options):
    return ResNet(*LAYERS[name], **options)
