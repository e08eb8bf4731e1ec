// What is drawn: three planes on one canvas, organs in 3D on another, both by NiiVue.

const { Niivue, NVImage, SLICE_TYPE, DRAG_MODE } = window.niivue;

export const WINDOWS = {
  "Soft tissue": { level: 40, width: 400 },
  Lung: { level: -600, width: 1500 },
  Bone: { level: 400, width: 1800 },
  Brain: { level: 40, width: 80 },
};

// Left, top, width, height of each view, as shares of the stage.
export const LAYOUTS = {
  All: { axial: [0, 0, 0.5, 0.5], coronal: [0.5, 0, 0.5, 0.5], sagittal: [0, 0.5, 0.5, 0.5], render: [0.5, 0.5, 0.5, 0.5] },
  Axial: { axial: [0, 0, 1, 1] },
  Coronal: { coronal: [0, 0, 1, 1] },
  Sagittal: { sagittal: [0, 0, 1, 1] },
  "3D": { render: [0, 0, 1, 1] },
};
// All views of a scan that is much taller than wide.
const ALL_TALL = { axial: [0, 0, 0.36, 0.5], sagittal: [0, 0.5, 0.36, 0.5], coronal: [0.36, 0, 0.32, 1], render: [0.68, 0, 0.32, 1] };
const TALL = 1.2; // height over width
const SOFTWARE = /swiftshader|llvmpipe|softpipe|software|basic render/i; // names of renderers without a graphics card
const SLICES = { axial: SLICE_TYPE.AXIAL, coronal: SLICE_TYPE.CORONAL, sagittal: SLICE_TYPE.SAGITTAL };

const AXES = { [SLICE_TYPE.AXIAL]: [0, 0, 1], [SLICE_TYPE.CORONAL]: [0, 1, 0], [SLICE_TYPE.SAGITTAL]: [1, 0, 0] }; // across a plane
const SLICE_TURN = 50; // pixels that the wheel turns for a slice; a notch of a mouse is more
const LINE = 40; // pixels

const COMMON = {
  backColor: [0, 0, 0, 1],
  isColorbar: false,
  dragAndDropEnabled: false,
  logLevel: "error",
  loadingText: "",
  crosshairColor: [0.98, 0.85, 0.35, 0.75],
};
const PLANES = {
  ...COMMON,
  isRadiologicalConvention: true,
  sagittalNoseLeft: true,
  isNearestInterpolation: false,
  crosshairWidthUnit: "percent",
  crosshairGap: 10,
  dragMode: DRAG_MODE.pan,
  fontMinPx: 12,
  fontSizeScaling: 0.3,
  isOrientationTextVisible: true,
  isCornerOrientationText: false,
  isForceMouseClickToVoxelCenters: true,
};
const RENDER = { ...COMMON, show3Dcrosshair: false, sliceType: SLICE_TYPE.RENDER, isOrientationTextVisible: true, fontMinPx: 11, fontSizeScaling: 0.3 };

const [UINT8, UINT16] = [2, 512]; // types of NIfTI
const LABEL_INTENT = 1002; // of NIfTI: outlines are drawn of such images alone
const INSIDE_OUTLINE = 0.04; // opacity
const CROSSHAIR = 140; // percent of a view times its pixels: lines of more than one pixel
const SHADING = 0.7; // of surfaces in 3D, 0 to 1

export class Scene {
  constructor(onMove) {
    this.planes = new Niivue({ ...PLANES, onLocationChange: onMove });
    this.planes.onLocationChange = onMove;
    this.render = new Niivue(RENDER);
    this.opacity = 0.55;
    this.outline = false;
    this.overlay = null; // what is drawn over the scan, and `solid` the same in 3D
    this.layout = "All";
    this.turned = 0; // by the wheel since the last slice
  }

  async attach(planes, render) {
    this.canvases = { planes, render };
    planes.addEventListener("wheel", (event) => this.turn(event), { capture: true, passive: false });
    await this.planes.attachToCanvas(planes);
    await this.render.attachToCanvas(render);
    this.render.setRenderAzimuthElevation(160, 12);
    await this.render.setVolumeRenderIllumination(SHADING);
  }

  // Whether the processor draws, which takes long for fine grids.
  get isSoftware() {
    const { gl } = this.planes;
    const names = gl.getExtension("WEBGL_debug_renderer_info");
    return SOFTWARE.test(gl.getParameter(names ? names.UNMASKED_RENDERER_WEBGL : gl.RENDERER));
  }

  // Load a scan and its label maps; nothing is drawn of the maps before `draw`. Where another case is wanted
  // meanwhile, nothing of this one is shown.
  async load(scan, maps, window, isWanted = () => true) {
    this.clear();
    const volume = await NVImage.loadFromUrl({ url: scan, name: "scan.nii", colormap: "gray" });
    const loaded = [];
    for (const url of maps) {
      if (!isWanted()) return;
      loaded.push(await NVImage.loadFromUrl({ url, name: "labels.nii", opacity: 1 }));
    }
    if (!isWanted()) return;
    this.clear(); // from here on nothing is awaited: images of one case, or none
    setRange(volume, window);
    this.planes.addVolume(volume);
    this.maps = loaded;
    this.setLayout(this.layout);
  }

  clear() {
    for (const view of [this.planes, this.render]) {
      for (const volume of [...view.volumes].reverse()) view.removeVolume(volume);
    }
    this.overlay = this.solid = null;
    this.maps = [];
  }

  get scan() {
    return this.planes.volumes[0];
  }

  // Draw values of the label maps' grid; `colours` are [red, green, blue, opacity] by value, from 1 on.
  draw(values, colours, coloursIn3D = colours) {
    const isNew = !this.overlay;
    if (isNew) [this.overlay, this.solid] = [this.imageOfMaps(), this.imageOfMaps()];
    for (const image of [this.overlay, this.solid]) {
      image.img = values;
      image.hdr.numBitsPerVoxel = 8 * values.BYTES_PER_ELEMENT;
      image.hdr.datatypeCode = values.BYTES_PER_ELEMENT === 1 ? UINT8 : UINT16;
      image.setColormapLabel(colourTable(image === this.solid ? coloursIn3D : colours));
    }
    this.setStyle();
    if (isNew) { // which draws: every layer that is coloured anew takes a while on large scans
      this.planes.addVolume(this.overlay);
      this.render.addVolume(this.solid);
    } else {
      this.planes.updateGLVolume();
      this.render.updateGLVolume();
    }
  }

  // A copy of the first label map, to be given values and colours.
  imageOfMaps() {
    const image = this.maps[0].clone();
    image.id = crypto.randomUUID();
    image.hdr.intent_code = LABEL_INTENT;
    return image;
  }

  setStyle() {
    this.planes.opts.atlasOutline = this.outline ? 1 : 0;
    this.overlay.opacity = this.outline ? INSIDE_OUTLINE : this.opacity;
  }

  // Draw the planes with another opacity or outline.
  refresh() {
    if (!this.overlay) return;
    this.setStyle();
    this.planes.updateGLVolume();
  }

  setWindow(window) {
    setRange(this.scan, window);
    this.planes.updateGLVolume();
  }

  // Where the views of a layout are.
  placesOf(name) {
    const [, width, height, depth] = this.scan?.dimsRAS ?? [3, 1, 1, 1];
    const [, across, along, up] = this.scan?.pixDimsRAS ?? [3, 1, 1, 1];
    const tall = depth * up > TALL * Math.max(width * across, height * along);
    return name === "All" && tall ? ALL_TALL : LAYOUTS[name];
  }

  setLayout(name) {
    this.layout = name;
    const { render, ...slices } = this.placesOf(name);
    const tiles = Object.entries(slices).map(([plane, position]) => ({ sliceType: SLICES[plane], position }));
    this.canvases.planes.hidden = tiles.length === 0;
    this.canvases.render.parentElement.hidden = !render;
    const narrowest = Math.min(1, ...tiles.map(({ position }) => position[2])) * this.canvases.planes.parentElement.clientWidth;
    this.planes.opts.crosshairWidth = CROSSHAIR / Math.max(1, narrowest); // a thinner one would vanish on a phone
    if (tiles.length) this.planes.setCustomLayout(tiles);
    this.render.scene.volScaleMultiplier = render === ALL_TALL.render ? 1.7 : 0.9; // as large as it can be without being cut
    if (render) place(this.canvases.render.parentElement, render); // NiiVue sets the size of a canvas itself
    requestAnimationFrame(() => {
      this.planes.resizeListener();
      this.render.resizeListener();
    });
  }

  jumpTo(mm) {
    this.planes.scene.crosshairPos = this.planes.mm2frac([...mm]);
    this.planes.drawScene();
    this.planes.createOnLocationChange();
  }

  // The voxel under the mouse; null where there is none.
  voxelAt(event) {
    const box = this.canvases.planes.getBoundingClientRect();
    const scale = this.canvases.planes.width / box.width;
    const place = this.planes.canvasPos2frac([(event.clientX - box.left) * scale, (event.clientY - box.top) * scale]);
    if (!this.scan || place.some((share) => !(share >= 0 && share <= 1))) return null;
    return [...this.planes.frac2vox(place)].slice(0, 3).map(Math.round);
  }

  step(x, y, z) {
    this.planes.moveCrosshairInVox(x, y, z);
    this.planes.createOnLocationChange();
  }

  // The wheel: slices of the plane under the mouse; with Ctrl, which a touchpad also sends for a pinch, zoom.
  // NiiVue itself would zoom, because a drag with the right button pans.
  turn(event) {
    event.preventDefault();
    event.stopImmediatePropagation();
    if (!this.scan) return;
    if (event.ctrlKey) return void this.zoom(event.deltaY < 0 ? 1.1 : 1 / 1.1);
    this.turned += event.deltaY * (event.deltaMode === event.DOM_DELTA_LINE ? LINE : 1);
    if (Math.abs(this.turned) < SLICE_TURN) return;
    const step = -Math.sign(this.turned);
    this.turned = 0;
    const { dpr } = this.planes.uiData;
    const tile = this.planes.screenSlices[this.planes.tileIndex(event.offsetX * dpr, event.offsetY * dpr)];
    if (tile) this.step(...AXES[tile.axCorSag].map((axis) => axis * step));
  }

  zoom(factor) {
    const [x, y, z, zoom] = this.planes.scene.pan2Dxyzmm;
    this.planes.setPan2Dxyzmm([x, y, z, Math.min(12, Math.max(0.5, zoom * factor))]);
  }

  reset() {
    this.planes.scene.crosshairPos = [0.5, 0.5, 0.5];
    this.planes.setPan2Dxyzmm([0, 0, 0, 1]);
    this.planes.createOnLocationChange();
  }

  // Both canvases on one picture, as they are on the screen.
  picture() {
    const picture = document.createElement("canvas");
    const { planes, render } = this.canvases;
    const base = planes.hidden ? render : planes;
    picture.width = base.width;
    picture.height = base.height;
    const context = picture.getContext("2d");
    const stage = base.getBoundingClientRect();
    const scale = base.width / stage.width;
    for (const [canvas, view] of [[planes, this.planes], [render, this.render]]) {
      if (!canvas.checkVisibility()) continue;
      view.drawScene(); // in this very task, before the browser gives up the drawing buffer
      const box = canvas.getBoundingClientRect();
      context.drawImage(canvas, (box.left - stage.left) * scale, (box.top - stage.top) * scale, box.width * scale, box.height * scale);
    }
    return picture;
  }
}

function setRange(volume, { level, width }) {
  volume.cal_min = level - width / 2;
  volume.cal_max = level + width / 2;
}

function place(box, [left, top, width, height]) {
  Object.assign(box.style, { left: `${100 * left}%`, top: `${100 * top}%`, width: `${100 * width}%`, height: `${100 * height}%` });
}

function colourTable(colours) {
  const all = [[0, 0, 0], ...colours];
  const column = (index) => all.map((colour) => colour[index]);
  return { R: column(0), G: column(1), B: column(2), A: all.map((colour, value) => (value ? colour[3] ?? 255 : 0)), I: [...all.keys()] };
}
