'use strict';
// Draws the chosen tokens. A scene has rows of items [start, length, colour, name, facts] in nanoseconds, and
// a critical path of steps [row, start, length, name].

const GUTTER = 76, AXIS = 22, CORE = 34, GAP = 6;
/** All reads together should not be higher than this. */
const READS = 180;
const root = document.documentElement;
addEventListener('error', (event) => { root.dataset.error = event.message; });

const time = (ns) =>
  ns < 1e3 ? `${ns.toFixed(0)} ns` : ns < 1e6 ? `${(ns / 1e3).toFixed(1)} µs` : `${(ns / 1e6).toFixed(2)} ms`;

/** A step of the axis that is 1, 2 or 5 times a power of ten, for about `count` ticks. */
function niceStep(span, count) {
  const power = 10 ** Math.floor(Math.log10(span / count));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => span / step <= count);
}

class Drawing {
  constructor(canvas, scene) {
    Object.assign(this, { canvas, scene, from: 0, to: scene.ns, drag: null });
    this.tip = canvas.parentElement.querySelector('.tip');
    const reads = scene.rows.filter((row) => !row.is_core).length;
    this.read = Math.max(2, Math.min(8, Math.floor(READS / Math.max(reads, 1))));
    let y = AXIS;
    let cores = true;
    this.tops = scene.rows.map((row) => {
      if (cores && !row.is_core) { y += GAP + 14; cores = false; this.readsTop = y; }
      const top = y;
      y += row.is_core ? CORE + GAP : this.read;
      return top;
    });
    this.height = y + GAP;
    canvas.style.height = `${this.height}px`;
    canvas.addEventListener('pointerdown', (e) => { this.drag = [e.offsetX, e.offsetX]; });
    canvas.addEventListener('pointermove', (e) => this.move(e));
    canvas.addEventListener('pointerup', () => this.drop());
    canvas.addEventListener('pointerleave', () => { this.drag = null; this.tip.hidden = true; this.draw(); });
    for (const button of canvas.parentElement.querySelectorAll('button')) {
      button.addEventListener('click', () => this.zoom(button.dataset.zoom));
    }
  }

  x(ns) { return GUTTER + (ns - this.from) / (this.to - this.from) * (this.width - GUTTER); }
  ns(x) { return this.from + (x - GUTTER) / (this.width - GUTTER) * (this.to - this.from); }
  rowHeight(row) { return this.scene.rows[row].is_core ? CORE : this.read; }

  show(from, to) {
    const span = Math.min(Math.max(to - from, 1000), this.scene.ns);
    this.from = Math.min(Math.max(from, 0), this.scene.ns - span);
    this.to = this.from + span;
    this.draw();
  }

  zoom(how) {
    if (how === 'all') return this.show(0, this.scene.ns);
    const middle = (this.from + this.to) / 2, half = (this.to - this.from) * (how === 'in' ? 0.25 : 1);
    return this.show(middle - half, middle + half);
  }

  drop() {
    const drag = this.drag;
    this.drag = null;
    if (drag && Math.abs(drag[1] - drag[0]) > 4) {
      this.show(this.ns(Math.min(...drag)), this.ns(Math.max(...drag)));
    } else this.draw();
  }

  move(event) {
    if (this.drag) { this.drag[1] = event.offsetX; this.draw(); return; }
    const { rows, path } = this.scene, ns = this.ns(event.offsetX);
    const row = this.tops.findIndex((top, i) => event.offsetY >= top && event.offsetY < top + this.rowHeight(i));
    const within = (start, length) => ns >= start && ns < start + length;
    const item = row >= 0 && rows[row].items.find(([start, length]) => within(start, length));
    this.tip.hidden = !item;
    if (!item) return;
    const critical = path.some(([on, start, length]) => on === row && within(start, length));
    this.tip.textContent = `${item[3]}, ${time(item[1])}: ${item[4]}${critical ? ' (on the critical path)' : ''}`;
    this.tip.style.left = `${Math.min(event.offsetX + 12, this.width - 260)}px`;
    this.tip.style.top = `${event.offsetY + this.canvas.offsetTop + 14}px`;
  }

  draw() {
    const ratio = devicePixelRatio || 1, { canvas, height } = this;
    this.width = canvas.clientWidth;
    canvas.width = this.width * ratio;
    canvas.height = height * ratio;
    const g = this.g = canvas.getContext('2d');
    g.scale(ratio, ratio);
    const style = getComputedStyle(root), colours = {};
    this.colour = (name) => colours[name] ??= style.getPropertyValue(`--${name}`).trim();
    g.font = '12px system-ui, sans-serif';
    g.textBaseline = 'middle';
    this.axis();
    g.save();
    g.beginPath();
    g.rect(GUTTER, 0, this.width - GUTTER, height);
    g.clip();
    this.scene.rows.forEach((row, i) => this.row(row, i));
    this.path();
    if (this.drag) {
      g.fillStyle = this.colour('text');
      g.globalAlpha = 0.15;
      g.fillRect(this.drag[0], 0, this.drag[1] - this.drag[0], height);
    }
    g.restore();
    this.names();
  }

  axis() {
    const { g } = this, step = niceStep(this.to - this.from, Math.max(2, this.width / 110));
    g.lineWidth = 1;
    for (let ns = Math.ceil(this.from / step) * step; ns <= this.to; ns += step) {
      const x = this.x(ns);
      g.strokeStyle = this.colour('rule');
      g.beginPath();
      g.moveTo(x, AXIS - 4);
      g.lineTo(x, this.height);
      g.stroke();
      g.fillStyle = this.colour('soft');
      const label = time(ns);
      if (x + 3 + g.measureText(label).width < this.width) g.fillText(label, x + 3, AXIS / 2);
    }
  }

  row(row, i) {
    const { g } = this, top = this.tops[i], height = this.rowHeight(i);
    for (const [start, length, colour, name] of row.items) {
      if (start + length < this.from || start > this.to) continue;
      const x = this.x(start), width = this.x(start + length) - x;
      g.fillStyle = this.colour(colour);
      g.fillRect(x, top, row.is_core ? width : Math.max(width - 0.5, 0.5), row.is_core ? height : height - 0.75);
      const label = name.replace('stall: ', '');
      if (row.is_core && width > 24 && g.measureText(label).width + 8 < width) {
        g.fillStyle = colour === 'barrier' || colour === 'updown' ? '#1c2330' : colour === 'idle' ? this.colour('text') : '#fff';
        g.fillText(label, x + 4, top + height / 2 - 3);
      }
    }
  }

  path() {
    const { g } = this;
    g.strokeStyle = g.fillStyle = this.colour('path');
    g.lineWidth = 1.5;
    let before = null;
    for (const [row, start, length] of this.scene.path) {
      const middle = this.tops[row] + (this.scene.rows[row].is_core ? CORE - 3 : this.read / 2);
      const x = this.x(start);
      if (before !== null && before !== middle && start >= this.from && start <= this.to) {
        g.beginPath();
        g.moveTo(x, before);
        g.lineTo(x, middle);
        g.stroke();
      }
      before = middle;
      if (start + length >= this.from && start <= this.to) {
        g.fillRect(x, middle - 2, Math.max(this.x(start + length) - x, 0.75), 4);
      }
    }
  }

  names() {
    const { g } = this;
    g.fillStyle = this.colour('text');
    this.scene.rows.forEach((row, i) => {
      if (row.is_core) g.fillText(row.name, 6, this.tops[i] + CORE / 2, GUTTER - 10);
    });
    if (this.readsTop !== undefined) {
      g.fillStyle = this.colour('soft');
      g.fillText('reads', 6, this.readsTop + 6, GUTTER - 10);
    }
  }
}

const scenes = JSON.parse(document.getElementById('scenes').textContent);
const drawings = [...document.querySelectorAll('canvas')].map((c) => new Drawing(c, scenes[c.dataset.scene]));
const drawAll = () => drawings.forEach((drawing) => drawing.draw());
drawAll();
addEventListener('resize', drawAll);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawAll);
root.dataset.drawn = String(drawings.length);
