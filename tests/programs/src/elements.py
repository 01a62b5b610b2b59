from lxml import etree

root = etree.Element("house")
for i in range(120000):
    room = etree.SubElement(root, "room", n=str(i))
    room.text = f"the room {i * 7919 % 10007}"
text = etree.tostring(root)
again = etree.fromstring(text)
print(len(text), len(again), again.xpath("count(//room[contains(text(), '77')])"), again[777].text)
