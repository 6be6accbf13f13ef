-- The timeline of a job: every change of its state, with time and worker (docs/learn/timelines.md). Off unless the queue
-- turns it on.
-- P:meta, `timeline`: `<sample, in millionths>|<entries>`.
-- Field `timeline` of a job: the letter of the state in which it was added, at its `timestamp` (absent if the job is
-- older than the setting, or the entry was removed as the oldest), then lines, oldest first, each after a newline: the
-- letter of the state, epoch ms in base 36, and who changed the state: nothing = no worker, `|<worker>`, or `=` = the
-- worker of the line before. The field of a usual job has less than 64 bytes, because a longer one would give its record
-- an encoding that costs twice as much to change.
-- A job is sampled by its id, so that all its transitions are recorded or none.

local ALL, ENTRIES_MAX, ID_MAX, WORKER_MAX, PRIME = 1000000, 1000, 256, 128, 2147483647
local SHORTEST, LONGEST = 10, 12 + WORKER_MAX -- bytes of a line
local DIGITS, TIME_DIGITS = '0123456789abcdefghijklmnopqrstuvwxyz', 10
local LETTERS = {
  waiting = 'w', prioritized = 'p', delayed = 'd', active = 'a', completed = 'c', failed = 'f', suspended = 's',
  ['waiting-children'] = 'k', ['group-waiting'] = 'g',
}
-- In place of a worker: the worker of the attempt that this report ends.
local REPORTER = true

-- Return {sample, entries, room}, or false if the timeline is off. q.timeline: the text, if the call has read it.
local function settings(q)
  local known = rawget(q, 'timeline_settings')
  if known ~= nil then return known end
  local text = rawget(q, 'timeline')
  if text == nil then text = G.pcall('HGET', q.meta, 'timeline') end
  local sample, entries = G.match(text, '^(%d+)|(%d+)$')
  known = false
  if sample and G.count_of(sample) > 0 then
    entries = math.min(math.max(1, G.count_of(entries)), ENTRIES_MAX)
    known = { sample = G.count_of(sample), entries = entries, room = SHORTEST * entries }
  end
  q.timeline_settings = known
  return known
end

-- Most ids are numbers, which need no loop.
local function is_sampled(sample, id)
  local hash = tonumber(id)
  if hash then
    hash = hash % PRIME
  else
    hash = 1
    for i = 1, math.min(#id, ID_MAX) do hash = (hash * 48271 + string.byte(id, i)) % PRIME end
  end
  -- Ids that differ in the last digit only.
  hash = (hash * 48271 + 11) % PRIME
  hash = (hash * 48271 + 11) % PRIME
  return (hash * 48271 + 11) % PRIME % ALL < sample
end

local function base36(number)
  local text = ''
  for _ = 1, TIME_DIGITS do
    local digit = number % 36
    text = string.sub(DIGITS, digit + 1, digit + 1) .. text
    number = (number - digit) / 36
    if number == 0 then break end
  end
  return text
end

local function suffix_of(worker)
  if worker == REPORTER then return '=' end
  return worker ~= '' and '|' .. string.sub(worker, 1, WORKER_MAX) or ''
end

-- Most jobs of a call get the same line as the one before, so it is formatted once.
local function format_line(known, state, now, worker)
  if known.now ~= now then known.now, known.time = now, base36(now) end
  known.state, known.worker = state, worker
  known.line = '\n' .. (LETTERS[state] or '?') .. known.time .. suffix_of(worker or '')
end

-- Remove the oldest entries. The first line that is kept names the worker that it referred to.
local function bounded(text, entries)
  if #text > LONGEST * (ENTRIES_MAX + 1) then return '' end -- malformed
  local starts, at = { 1 }, 0
  for _ = 1, ENTRIES_MAX do
    at = string.find(text, '\n', at + 1, true)
    if not at then break end
    starts[#starts + 1] = at
  end
  -- Without the letter of the add, the first entry begins with the first newline.
  local count = #starts - (string.sub(text, 1, 1) == '\n' and 1 or 0)
  if count <= entries then return text end
  local cut = starts[#starts - entries + 1]
  local kept = string.sub(text, cut)
  local head = string.match(kept, '^\n%l%w+=')
  if not head then return kept end
  local worker = string.match(string.sub(text, starts[#starts - entries], cut - 1), '|([^\n]*)$') or ''
  return string.sub(head, 1, -2) .. suffix_of(worker) .. string.sub(kept, #head + 1)
end

-- Return the field with one more entry; nil if the timeline is off for this job. before: the field of the record, false
-- or nil = none. worker: nil = none. This replaces the function of core/namespaces.lua, which the wire library keeps.
G.timeline = function(q, id, before, state, now, worker)
  local known = settings(q)
  if not known or known.sample < ALL and not is_sampled(known.sample, id) then return nil end
  now = now or G.now(q)
  if known.state ~= state or known.now ~= now or known.worker ~= worker then format_line(known, state, now, worker) end
  local text = before and before .. known.line or known.line
  return #text > known.room and bounded(text, known.entries) or text
end

-- The same for a job that is added now with its `timestamp`.
G.new_timeline = function(q, id, state)
  local known = settings(q)
  return known and (known.sample >= ALL or is_sampled(known.sample, id)) and LETTERS[state] or nil
end

-- Record that the job has this state now, where the record is not read and written anyway.
G.note_state = function(q, id, state, now, worker)
  if rawget(q, 'timeline') == false or not settings(q) then return end
  local before, present = unpack(redis.call('HMGET', q.J .. id, 'timeline', 'state'))
  local text = present and G.timeline(q, id, before, state, now, worker)
  if text then G.set(q, id, 'timeline', text) end
end

-- The same for a state that the report of an attempt has caused.
G.note_reported = function(q, id, state, now) G.note_state(q, id, state, now, REPORTER) end
G.REPORTER = REPORTER
