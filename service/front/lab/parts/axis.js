// A linear axis: where its ticks lie, and how wide the drawing is.

import { useEffect, useRef, useState } from "../vendor/htm-preact.js";

/** Round values within [from, to], about `count` of them, as distances of 1, 2 or 5 times a power of ten. */
export function ticks(from, to, count) {
  const rough = (to - from) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  const first = Math.ceil(from / step - 1e-9);
  const last = Math.floor(to / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, place) => (first + place) * step);
}

/** `[ref, width]` of an element in CSS pixels, as it is and as it changes. */
export function useWidth(first = 800) {
  const element = useRef(null);
  const [width, setWidth] = useState(first);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.max(1, Math.floor(entry.contentRect.width))));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return [element, width];
}
