-- add: one job or many, in one step.
-- KEYS 1 meta   ARGV 1 packed {rows, quiet}   -> packed {now, results}
-- row: {name, data, opts, id|'', delay, attempts, priority, lifo 0|1, ttl, run_at}, cut after the last one given
-- result: the new job's id, or {outcome, id} where no job was added
-- errors: OOM (not allow-oom: a full server refuses new jobs)

local NAME, DATA, OPTS, ID, DELAY, ATTEMPTS, PRIORITY, LIFO, TTL, RUN_AT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10

-- Ids for the rows that bring none. One INCRBY and one EXISTS for all of them; a counter that was lost or a
-- custom id in its way (W64) makes us look one by one.
local function issue_ids(q, rows)
  local auto, digits = 0, false
  for i = 1, #rows do
    local id = rows[i][ID]
    if not id or id == '' then
      auto = auto + 1
    elseif not digits and string.find(id, '^%d+$') then
      digits = true
    end
  end
  if auto == 0 or digits then return nil end
  local last = redis.call('INCRBY', q.id, auto)
  local ids, first, J = {}, last - auto, q.J
  local taken = 0
  for from = 1, auto, 500 do
    local chunk = {}
    for i = from, math.min(from + 499, auto) do
      ids[i] = G.int(first + i)
      chunk[#chunk + 1] = J .. ids[i]
    end
    taken = taken + redis.call('EXISTS', unpack(chunk))
  end
  return taken == 0 and ids or nil
end

-- In growing steps: a counter that was lost behind a million jobs finds its way past them in a few looks.
local function next_free_id(q)
  local id
  local step = 1
  repeat
    id = G.int(redis.call('INCRBY', q.id, G.int(step)))
    step = step * 2
  until redis.call('EXISTS', q.J .. id) == 0
  return id
end

-- The places that rows may be put in, read once: a key of a foreign type fails a bulk before its first row.
local function check_places(q)
  redis.call('XLEN', q.stream)
  redis.call('ZCARD', q.scheduled)
  redis.call('LLEN', q.lifo)
  redis.call('HLEN', q.meta)
end

local function add_plain(q, now_text, quiet, id, row)
  local call, name = redis.call, row[NAME]
  local entry = call('XADD', q.stream, '*', 'jobId', id, 'name', name)
  call('HSET', q.J .. id, 'id', id, 'name', name, 'data', row[DATA], 'opts', row[OPTS], 'timestamp', now_text,
    'attemptsMade', '0', 'delay', '0', 'priority', '0', 'maxAttempts', G.int(row[ATTEMPTS] or 0),
    'state', 'waiting')
  -- An entry made in the millisecond of its job is found again by that; any other one has to be noted.
  if string.sub(entry, 1, #now_text + 1) ~= now_text .. '-' then call('HSET', q.J .. id, 'eid', entry) end
  if not quiet then
    redis.pcall('XADD', q.events, 'MAXLEN', '~', '1000', '*', 'event', 'added', 'jobId', id, 'name', name)
  end
end

local function add_full(q, now, quiet, id, row)
  local delay, run_at, priority = row[DELAY] or 0, row[RUN_AT], row[PRIORITY] or 0
  local due = nil
  if run_at and run_at > now then
    due, delay = run_at, run_at - now
  elseif not run_at and delay > 0 then
    due = now + delay
  end
  local state, entry = G.place(q, now, {
    id = id, name = row[NAME], priority = priority, lifo = row[LIFO] == 1, due = due,
  })
  local fields = {
    'id', id, 'name', row[NAME], 'data', row[DATA], 'opts', row[OPTS], 'timestamp', G.int(now),
    'attemptsMade', '0', 'delay', G.int(delay), 'priority', G.int(priority),
    'maxAttempts', G.int(row[ATTEMPTS] or 0), 'state', state,
  }
  local n = #fields
  local function put(field, value)
    fields[n + 1], fields[n + 2] = field, value
    n = n + 2
  end
  if entry ~= '' then put('eid', entry) end
  if row[LIFO] == 1 then put('lifo', '1') end
  if (row[TTL] or 0) > 0 then put('expireAt', G.int(now + row[TTL])) end
  redis.call('HSET', q.J .. id, unpack(fields))
  if not quiet then G.emit(q.events, 'added', id, 'name', row[NAME]) end
end

G.export('add', {}, function(keys, args)
  local q, request = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local rows, quiet = request[1], request[2]
  local now = G.now(q)
  local now_text, results = G.int(now), {}
  if #rows > 1 then check_places(q) end
  local ids, next_auto = issue_ids(q, rows), 0
  for i = 1, #rows do
    local row = rows[i]
    local id = row[ID]
    if not id or id == '' then
      next_auto = next_auto + 1
      id = ids and ids[next_auto] or next_free_id(q)
    elseif redis.call('EXISTS', q.J .. id) == 1 then
      results[i], id = { 'duplicate', id }, nil
    else
      G.advance_counter(q, id)
    end
    if id then
      if row[DELAY] or row[PRIORITY] then
        add_full(q, now, quiet, id, row)
      else
        add_plain(q, now_text, quiet, id, row)
      end
      results[i] = id
    end
  end
  return cmsgpack.pack({ now, results })
end)
