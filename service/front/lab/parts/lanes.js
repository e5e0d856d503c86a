// Where the blocks of a timeline lie: one lane per thread or stream and depth, one mode's lanes below the other's.

export const ROW = 20;
const HEAD = 26;
const BELOW = 8;

/**
 * `{lanes, heads, height}` of the finding's `tracks`. A lane is `{y, blocks}`, each block with its place in the
 * track; a head is the text above the lanes of a mode's host, or of one of its device's streams.
 */
export function laneLayout(tracks) {
  const lanes = [];
  const heads = [];
  let y = 0;
  tracks.forEach((track, number) => {
    let above = null;
    for (const lane of lanesOf(track)) {
      if (lane.head !== above) {
        heads.push({ text: `${track.mode} · ${lane.head}`, y: y + HEAD - 8 });
        y += HEAD;
        above = lane.head;
      }
      lanes.push({ ...lane, track: number, y });
      y += ROW;
    }
    y += BELOW;
  });
  return { lanes, heads, height: y };
}

function lanesOf(track) {
  // The step's own thread, that of its mark, stands first; others call the device's runtime beside it.
  const own = track.blocks[0].row;
  const found = new Map();
  track.blocks.forEach((block, place) => {
    const key = [block.lane === "device" ? 1 : 0, block.row === own ? 0 : 1, block.row, block.depth];
    const name = key.join("/");
    if (!found.has(name)) found.set(name, { key, head: headOf(block, own), blocks: [] });
    found.get(name).blocks.push({ ...block, place });
  });
  return [...found.values()].sort((a, b) => compare(a.key, b.key));
}

function headOf(block, own) {
  if (block.lane === "device") return `device, stream ${block.row}`;
  return block.row === own ? "host" : `host, thread ${block.row}`;
}

const compare = (a, b) => a.map((value, place) => value - b[place]).find((difference) => difference !== 0) ?? 0;
