// The views in the order of the navigation: another one is one more row.

import * as budget from "./views/budget.js";
import * as compare from "./views/compare.js";
import * as dispatcher from "./views/dispatcher.js";
import * as live from "./views/live.js";
import * as play from "./views/play.js";
import * as probes from "./views/probes.js";
import * as runs from "./views/runs.js";
import * as tape from "./views/tape.js";
import * as timeline from "./views/timeline.js";

export const VIEWS = [play, compare, dispatcher, timeline, tape, budget, probes, live, runs];
