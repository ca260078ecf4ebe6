// A map as a picture.

// With a pixel for each tile.
export function pictureOf(map, theme) {
  const canvas = document.createElement("canvas");
  canvas.width = map.width;
  canvas.height = map.height;
  const context = canvas.getContext("2d");
  context.fillStyle = theme.floor;
  context.fillRect(0, 0, map.width, map.height);
  context.fillStyle = theme.area;
  for (const { x0, y0, x1, y1 } of map.areas ?? []) context.fillRect(x0, y0, x1 - x0 + 1, y1 - y0 + 1);
  context.fillStyle = theme.wall;
  map.walls.forEach((runs, y) => {
    let x = 0;
    runs.forEach((length, number) => {
      if (number % 2) context.fillRect(x, y, length, 1);
      x += length;
    });
  });
  return canvas;
}
