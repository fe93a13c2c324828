// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Runs in a page of gradwire.report: says in <pre id="measured"> what is wrong with it, and what is where, in pixels.
const problems = [], box = element => element.getBoundingClientRect();
const inside = (a, b) =>
  a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
document.querySelectorAll('details').forEach(each => each.open = true);
if (document.documentElement.scrollWidth > document.documentElement.clientWidth)
  problems.push('the page is wider than the window: ' + document.documentElement.scrollWidth);
for (const card of document.querySelectorAll('section'))
  for (const element of card.querySelectorAll(':scope > :not(.scroll), .legend *, .bar > *, .gantt > *'))
    if (box(element).width && !inside(box(element), box(card))) problems.push('outside of its section: ' + element.outerHTML.slice(0, 200));
for (const svg of document.querySelectorAll('section svg')) {
  if (box(svg).width && !inside(box(svg), box(svg.closest('section')))) problems.push('a chart is cut: ' + svg.ariaLabel);
  if (box(svg).width && box(svg.querySelector('text')).height < 9) problems.push('words of a chart are too small: ' + svg.ariaLabel);
  const texts = [...svg.querySelectorAll('text')].map(text => [text.textContent, box(text)]);
  texts.forEach(([word, place], i) => {
    if (!inside(place, box(svg))) problems.push('outside of its chart: ' + word);
    for (const [other, there] of texts.slice(i + 1))
      if (meet(place, there)) problems.push(word + ' lies over ' + other);
  });
  for (const dot of svg.querySelectorAll('circle'))
    if (!inside(box(dot), box(svg))) problems.push('a dot outside of its chart');
}
for (const scale of document.querySelectorAll('.gantt-scale')) {
  const marks = [...scale.children].map(box);
  marks.slice(1).forEach((mark, i) => {
    if (meet(mark, marks[i])) problems.push('marks of a timeline lie over each other');
  });
}
if (document.querySelectorAll('section svg').length && ![...document.querySelectorAll('section svg')].some(svg => box(svg).width))
  problems.push('no chart is shown');
const numbers = text => text.match(/[\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
  .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const behind = element => {
  for (let at = element; at; at = at.parentElement) {
    const colour = numbers(getComputedStyle(at).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
};
let faintest = 99;
for (const element of document.querySelectorAll('body *')) {
  const words = [...element.childNodes].some(node => node.nodeType == 3 && node.textContent.trim());
  if (!words || element.tagName == 'title' || element.tagName == 'SCRIPT') continue;
  const style = getComputedStyle(element);
  const colour = numbers(element.ownerSVGElement ? style.fill : style.color);
  const pair = [light(colour), light(behind(element))].sort((a, b) => b - a);
  faintest = Math.min(faintest, (pair[0] + .05) / (pair[1] + .05));
}
const blocks = [...document.querySelectorAll('.block')].map(block => {
  const track = box(block.parentElement), own = box(block), length = +block.closest('.gantt').dataset.length;
  return [block.dataset.begin / length, block.dataset.end / length,
          (own.left - track.left) / track.width, (own.right - track.left) / track.width, 1 / track.width];
});
const bars = [...document.querySelectorAll('.bars')].map(chart => [...chart.querySelectorAll('.piece')]
  .map(piece => [+piece.dataset.value, box(piece).width]));
const report = document.createElement('pre');
report.id = 'measured';
const dark = matchMedia('(prefers-color-scheme: dark)').matches;
report.textContent = JSON.stringify({problems, faintest, blocks, bars, dark});
document.body.append(report);
