import hashlib

from PIL import Image, ImageFilter

p = Image.effect_mandelbrot((1800, 1500), (-2, -1.5, 1, 1.5), 60).convert("RGB")
p = p.filter(ImageFilter.GaussianBlur(3)).rotate(17, expand=True).resize((1500, 1500), Image.LANCZOS)
p.save("p.png", compress_level=1)
print(hashlib.sha256(Image.open("p.png").tobytes()).hexdigest())
