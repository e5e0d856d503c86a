// The views in the order of the navigation: another one is one more row.

import * as compare from "./views/compare.js";
import * as live from "./views/live.js";
import * as play from "./views/play.js";
import * as runs from "./views/runs.js";

export const VIEWS = [play, compare, live, runs];
